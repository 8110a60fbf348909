// @ts-check
/** Samples and files: 16-bit PCM, WAV, base64. */

const WAV_HEADER_BYTES = 44;
const BASE64_CHUNK = 0x8000;

/**
 * Converts little-endian 16-bit bytes to samples in [-1, 1]. A piece may end within a sample.
 * @param {ArrayBuffer} bytes
 * @param {number | null} half the byte left over from the piece before
 * @returns {{ samples: Float32Array, half: number | null }}
 */
export function floatsOf(bytes, half) {
  let view = new Uint8Array(bytes);
  if (half !== null) {
    const joined = new Uint8Array(view.length + 1);
    joined[0] = half;
    joined.set(view, 1);
    view = joined;
  }
  const count = view.length >> 1;
  const data = new DataView(view.buffer, view.byteOffset, count * 2);
  const samples = new Float32Array(count);
  for (let index = 0; index < count; index++) samples[index] = data.getInt16(index * 2, true) / 32768;
  return { samples, half: view.length % 2 ? view[view.length - 1] : null };
}

/**
 * Builds a WAV file with its true sizes.
 * @param {ArrayBuffer[]} pcm 16-bit mono, in order
 * @param {number} sampleRate
 * @returns {Blob}
 */
export function wavOf(pcm, sampleRate) {
  const dataBytes = pcm.reduce((sum, piece) => sum + piece.byteLength, 0);
  const header = new DataView(new ArrayBuffer(WAV_HEADER_BYTES));
  const text = (/** @type {number} */ at, /** @type {string} */ value) =>
    [...value].forEach((letter, index) => header.setUint8(at + index, letter.charCodeAt(0)));
  text(0, "RIFF");
  header.setUint32(4, dataBytes + WAV_HEADER_BYTES - 8, true);
  text(8, "WAVEfmt ");
  header.setUint32(16, 16, true);
  header.setUint16(20, 1, true);
  header.setUint16(22, 1, true);
  header.setUint32(24, sampleRate, true);
  header.setUint32(28, sampleRate * 2, true);
  header.setUint16(32, 2, true);
  header.setUint16(34, 16, true);
  text(36, "data");
  header.setUint32(40, dataBytes, true);
  return new Blob([header, ...pcm], { type: "audio/wav" });
}

/** Converts samples in [-1, 1] to little-endian 16 bit. @param {Float32Array} samples @returns {ArrayBuffer} */
export function pcmOf(samples) {
  const data = new DataView(new ArrayBuffer(samples.length * 2));
  samples.forEach((sample, index) => data.setInt16(index * 2, Math.max(-1, Math.min(1, sample)) * 32767, true));
  return data.buffer;
}

/** @param {Blob} blob @returns {Promise<string>} a data: URL */
export async function dataUrlOf(blob) {
  const bytes = new Uint8Array(await blob.arrayBuffer());
  let binary = "";
  for (let start = 0; start < bytes.length; start += BASE64_CHUNK) {
    binary += String.fromCharCode(...bytes.subarray(start, start + BASE64_CHUNK));
  }
  return `data:${blob.type};base64,${btoa(binary)}`;
}

/**
 * Converts any audio file that the browser can read to 24 kHz mono WAV, which is small enough to send.
 * @param {Blob} file
 * @param {number} maxSeconds longer audio is cut
 * @returns {Promise<{ wav: Blob, seconds: number }>}
 */
export async function referenceOf(file, maxSeconds) {
  const sampleRate = 24000;
  const decoded = await new OfflineAudioContext(1, 1, sampleRate).decodeAudioData(await file.arrayBuffer());
  const length = Math.min(decoded.length, maxSeconds * sampleRate);
  const mono = new OfflineAudioContext(1, length, sampleRate);
  const source = mono.createBufferSource();
  source.buffer = decoded;
  source.connect(mono.destination);
  source.start();
  const samples = (await mono.startRendering()).getChannelData(0);
  return { wav: wavOf([pcmOf(samples)], sampleRate), seconds: length / sampleRate };
}
