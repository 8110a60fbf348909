/**
 * @typedef {{ queued: number, played: number, underruns: number, playing: boolean, drained: boolean }} PlayerReport
 *   all in samples
 */
export class Player {
    /** Browsers let a page make sound only after a click or a key. @param {number} sampleRate */
    static open(sampleRate: number): Promise<Player>;
    /** @param {AudioContext} context @param {AudioWorkletNode} node */
    constructor(context: AudioContext, node: AudioWorkletNode);
    /** @type {(report: PlayerReport) => void} Many times a second while the page lives. */
    onreport: (report: PlayerReport) => void;
    get sampleRate(): number;
    resume(): Promise<void>;
    /** @param {ArrayBuffer} bytes @returns {Float32Array} the samples that these bytes complete */
    push(bytes: ArrayBuffer): Float32Array;
    /** Ends the utterance: plays the buffered audio to its end, even if it is short. */
    end(): void;
    /** Silences the player at once. */
    clear(): void;
    close(): Promise<void>;
    #private;
}
/**
 * all in samples
 */
export type PlayerReport = {
    queued: number;
    played: number;
    underruns: number;
    playing: boolean;
    drained: boolean;
};
