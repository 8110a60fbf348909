/**
 * @typedef {{ targetSamples: number, maxTargetSamples: number }} JitterBuffer
 *
 * @typedef {object} OutputReport
 * @property {number} run of the clear() before
 * @property {number} played samples since then
 * @property {number} underruns since then
 * @property {boolean} playing
 * @property {boolean} drained true once per utterance, when all of it has been played
 *
 * @typedef {object} Output
 * @property {(report: OutputReport) => void} onreport
 * @property {(samples: Float32Array<ArrayBuffer>) => void} push the output owns the samples
 * @property {() => void} end what was pushed is all: it is played even if it is short
 * @property {(run: number) => void} clear silences at once; reports that follow have this number
 * @property {() => void} close
 */
/** @param {AudioContext} context @param {AudioNode} target @param {JitterBuffer} buffer @returns {Promise<Output>} */
export function openOutput(context: AudioContext, target: AudioNode, buffer: JitterBuffer): Promise<Output>;
export type JitterBuffer = {
    targetSamples: number;
    maxTargetSamples: number;
};
export type OutputReport = {
    /**
     * of the clear() before
     */
    run: number;
    /**
     * samples since then
     */
    played: number;
    /**
     * since then
     */
    underruns: number;
    playing: boolean;
    /**
     * true once per utterance, when all of it has been played
     */
    drained: boolean;
};
export type Output = {
    onreport: (report: OutputReport) => void;
    /**
     * the output owns the samples
     */
    push: (samples: Float32Array<ArrayBuffer>) => void;
    /**
     * what was pushed is all: it is played even if it is short
     */
    end: () => void;
    /**
     * silences at once; reports that follow have this number
     */
    clear: (run: number) => void;
    close: () => void;
};
