/**
 * Converts little-endian 16-bit bytes to samples in [-1, 1]. A piece may end within a sample.
 * @param {ArrayBuffer} bytes
 * @param {number | null} half the byte left over from the piece before
 * @returns {{ samples: Float32Array, half: number | null }}
 */
export function floatsOf(bytes: ArrayBuffer, half: number | null): {
    samples: Float32Array;
    half: number | null;
};
/**
 * Builds a WAV file with its true sizes.
 * @param {ArrayBuffer[]} pcm 16-bit mono, in order
 * @param {number} sampleRate
 * @returns {Blob}
 */
export function wavOf(pcm: ArrayBuffer[], sampleRate: number): Blob;
/** Converts samples in [-1, 1] to little-endian 16 bit. @param {Float32Array} samples @returns {ArrayBuffer} */
export function pcmOf(samples: Float32Array): ArrayBuffer;
/** @param {Blob} blob @returns {Promise<string>} a data: URL */
export function dataUrlOf(blob: Blob): Promise<string>;
/**
 * Converts any audio file that the browser can read to 24 kHz mono WAV, which is small enough to send.
 * @param {Blob} file
 * @param {number} maxSeconds longer audio is cut
 * @returns {Promise<{ wav: Blob, seconds: number }>}
 */
export function referenceOf(file: Blob, maxSeconds: number): Promise<{
    wav: Blob;
    seconds: number;
}>;
