export class Tape {
    /** @param {number} keptSamples number of samples that are kept after they were heard; more are kept only unheard */
    constructor(keptSamples: number);
    /** Position after the last sample. */
    end: number;
    /** Position of the first sample that is kept. */
    get start(): number;
    clear(): void;
    /** @param {ArrayBuffer} bytes little-endian, of any length @returns {Float32Array} the samples that these bytes complete */
    add(bytes: ArrayBuffer): Float32Array;
    /**
     * Returns at least one sample if there is one, and fewer than asked for at the end of a block.
     * @param {number} from
     * @param {number} until
     * @returns {Float32Array<ArrayBuffer>} in [-1, 1]
     */
    read(from: number, until: number): Float32Array<ArrayBuffer>;
    /** Forgets what is more than the kept length. @param {number} heard position; what follows is never forgotten */
    forget(heard: number): void;
    /** @returns {ArrayBuffer[]} all that is kept, as little-endian bytes (the order of every machine with a browser) */
    pcm(): ArrayBuffer[];
    #private;
}
