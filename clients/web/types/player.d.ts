/** Speech that is kept after it was heard: 86 MB at 24 kHz. Speech that was not heard yet is kept however long it is. */
export const KEPT_S: 1800;
/**
 * @typedef {object} PlayerReport
 * @property {number} queued samples that arrived and are still to be played
 * @property {number} played position: samples from the beginning of the utterance to the one that is heard
 * @property {number} underruns times that the speech stopped because nothing more had arrived
 * @property {boolean} playing
 * @property {boolean} drained true once, when the last sample of an utterance has been played
 */
export class Player {
    /** Browsers let a page make sound only after a click or a key. @param {number} sampleRate */
    static open(sampleRate: number): Promise<Player>;
    /** @param {AudioContext} context @param {GainNode} gain @param {import("./outputs.js").Output} output */
    constructor(context: AudioContext, gain: GainNode, output: import("./outputs.js").Output);
    /** @type {(report: PlayerReport) => void} Many times a second while the page lives. */
    onreport: (report: PlayerReport) => void;
    get sampleRate(): number;
    /** Number of samples that have arrived: the position after the last one. */
    get arrived(): number;
    /** Number of samples that were forgotten: the position of the first that is kept. */
    get forgotten(): number;
    /** Position of the sample that is heard. */
    get position(): number;
    /** False after pause() and stop(), and once all of an utterance was heard: play() goes on. */
    get running(): boolean;
    /** True after pause(), until the speech goes on. */
    get paused(): boolean;
    set volume(volume: number);
    /** Between 0 and 1. */
    get volume(): number;
    /** Lets sound out: what was pushed, or is pushed from now on. */
    resume(): Promise<void>;
    /** Holds the speech where it is. More of it may arrive. */
    pause(): Promise<void>;
    /** Goes on after pause() and stop(). Begins again if all of the utterance was heard. */
    play(): Promise<void>;
    /** Goes to a position, or to the nearest that there is. @param {number} position in samples */
    seek(position: number): void;
    /** @param {ArrayBuffer} bytes @returns {Float32Array} the samples that these bytes complete */
    push(bytes: ArrayBuffer): Float32Array;
    /** Ends the utterance: plays the buffered audio to its end, even if it is short. */
    end(): void;
    /** Ends the utterance and silences it at once. What has arrived is kept for play() and wav(). */
    stop(): void;
    /** Silences the player at once, and forgets the utterance. */
    clear(): void;
    /** @returns {Blob} all that has arrived and is kept, sample by sample, as a WAV file */
    wav(): Blob;
    close(): Promise<void>;
    #private;
}
export type PlayerReport = {
    /**
     * samples that arrived and are still to be played
     */
    queued: number;
    /**
     * position: samples from the beginning of the utterance to the one that is heard
     */
    played: number;
    /**
     * times that the speech stopped because nothing more had arrived
     */
    underruns: number;
    playing: boolean;
    /**
     * true once, when the last sample of an utterance has been played
     */
    drained: boolean;
};
