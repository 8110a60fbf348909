// @ts-check
/**
 * Client for browsers and Node. It implements the wire protocol and nothing else. Node 20 has no WebSocket: there the
 * client uses the package ws, if it is installed.
 *
 *     const client = new VivavoceClient("http://localhost:8000");
 *     const session = await client.live({ voice: "heart" });
 *     session.onaudio = (pcm) => player.push(pcm);
 *     session.say("Hello "); session.say("there."); session.end();
 */

import { answerOf, eventsOf } from "./events.js";
import { LiveSession, VivavoceError } from "./session.js";

export { LiveSession, VivavoceError };

const STREAM_PATH = "v1/audio/speech/stream";

/**
 * @typedef {object} SpeechOptions
 * @property {string} [model]
 * @property {string} [voice]
 * @property {string} [language]
 * @property {string} [instructions]
 * @property {string} [response_format]
 * @property {number} [speed]
 * @property {number} [seed]
 * @property {number} [sample_rate]
 * @property {"trim" | "keep"} [leading_silence] silence before the first word: all but 20 ms dropped, or kept
 * @property {string} [ref_audio] base64 or a data: URL
 * @property {string} [ref_text]
 * @property {boolean} [x_vector_only_mode]
 * @property {boolean | string[]} [normalize] true: all that is written is read as words; false: as written; or stages
 * @property {"none" | "sentence"} [split]
 * @property {boolean} [word_timestamps] true asks for the times of words, which not all models know
 * @property {boolean} [allow_voice_tags] false makes tags such as [voice:heart] text like any other
 * @property {number} [turn_pause_s] silence between the turns of two voices
 *
 * @typedef {object} Segment a turn of a dialogue; what it leaves out is the request's
 * @property {string} text
 * @property {string} [voice]
 * @property {string} [instructions]
 * @property {string} [language]
 * @property {number} [speed]
 * @property {number} [seed]
 * @property {string} [ref_audio]
 * @property {string} [ref_text]
 * @property {boolean} [x_vector_only_mode]
 *
 * @typedef {object} ClientOptions
 * @property {string} [apiKey]
 * @property {typeof fetch} [fetch]
 * @property {typeof WebSocket} [WebSocket]
 * @property {(pauseMs: number) => Promise<void>} [sleep] waits before a further attempt to connect
 *
 * @typedef {{ stages: string[] }} ReadText `stages` of reading are those of a request that names none
 * @typedef {{ id: string, task: string, languages: string[], takes_instructions: boolean, clones: boolean, word_times: boolean, text: ReadText }} Model
 * @typedef {"female" | "male"} Sex
 *
 * @typedef {object} Voice
 * @property {string} id
 * @property {string} name
 * @property {string | null} model the first that can speak with it
 * @property {Sex | null} sex
 * @property {string | null} accent
 * @property {string | null} language its own
 * @property {string[]} languages all that it speaks
 * @property {string | null} description
 * @property {number | null} created_at in seconds since 1970; of stored voices only
 *
 * @typedef {object} NewVoice a voice to store, from a recording or from a mix of the server's voices
 * @property {string} name
 * @property {string} consent the speaker's permission, in words
 * @property {Blob} [recording]
 * @property {string} [ref_text] the words of the recording
 * @property {string} [mix] for example "heart(2)+mine(1)"
 * @property {string} [model]
 *
 * @typedef {{ text: string } | { pause_s: number }} SpokenPart
 * @typedef {{ text: string, parts: SpokenPart[], language: string, stages: string[], left_out: string[], warnings: string[] }} SpokenText
 * @typedef {{ type: string } & Record<string, unknown>} Message
 * @typedef {{ utterance_index: number, format: string, sample_rate: number }} UtteranceStart
 * @typedef {{ text: string, end_ms: number }} SaidPart text all of whose audio was sent, and its end in the audio
 *
 * @typedef {object} UtteranceEnd
 * @property {number} utterance_index
 * @property {number} duration_ms of the audio that was sent
 * @property {number} total_bytes
 * @property {number} frames codec frames that were sent
 * @property {boolean} cancelled
 * @property {SaidPart[]} parts
 * @property {string} [text_begun] the next word or part, if the speech was cut while it was sent
 * @property {string[]} [warnings] sentences about text that was not spoken as written
 * @property {"length"} [finish_reason] max_new_tokens ended the speech
 * @property {number} [spoken_text_chars] characters of the text whose audio was sent
 * @property {SpokenTurn[]} [segments] the turns of a dialogue
 *
 * @typedef {object} SpokenWord a word as it is written; text_start and text_end count characters, not units of UTF-16
 * @property {string} word
 * @property {number | null} start seconds of the audio; null if its times are unknown
 * @property {number | null} end
 * @property {number} text_start
 * @property {number} text_end
 *
 * @typedef {{ index: number, voice: string | null, start: number, end: number }} SpokenTurn a turn, in seconds of the audio
 * @typedef {{ kind: "audio", bytes: Uint8Array }} AudioEvent
 * @typedef {{ kind: "words", words: SpokenWord[] }} WordsEvent
 * @typedef {{ kind: "done", words: SpokenWord[], turns: SpokenTurn[], seconds: number | null }} DoneEvent `seconds` is the audio's length; null if the server does not tell
 * @typedef {AudioEvent | WordsEvent | DoneEvent} SpeechEvent
 *
 * @typedef {{ type: "text", text: string }} TextPart
 * @typedef {{ type: "input_audio", input_audio: { data: string, format?: string } }} SoundPart a file in base64
 * @typedef {{ type: "image_url", image_url: { url: string } }} PicturePart
 * @typedef {{ role: "system" | "user" | "assistant", content: string | (TextPart | SoundPart | PicturePart)[] }} ChatMessage
 *
 * @typedef {object} ChatOptions
 * @property {string} [model]
 * @property {("text" | "audio")[]} [modalities]
 * @property {{ voice: string, format: string, speed?: number, sample_rate?: number }} [audio]
 * @property {number} [max_completion_tokens]
 * @property {number} [temperature]
 * @property {number} [top_p]
 * @property {number} [seed]
 *
 * @typedef {{ kind: "text", text: string }} AnswerText what the audio says, or the answer where nothing is spoken
 * @typedef {{ kind: "unspoken", text: string }} UnspokenText the rest of an answer, which its voice left out
 * @typedef {{ kind: "end", reason: "stop" | "length" }} AnswerEnd
 * @typedef {AnswerText | AudioEvent | UnspokenText | AnswerEnd} AnswerEvent
 */

export class VivavoceClient {
  /**
   * @param {string | URL} baseUrl
   * @param {ClientOptions} [options]
   */
  constructor(baseUrl, options = {}) {
    this.baseUrl = new URL(baseUrl);
    if (!this.baseUrl.pathname.endsWith("/")) this.baseUrl.pathname += "/";
    this.apiKey = options.apiKey ?? "";
    this.fetch = options.fetch ?? globalThis.fetch.bind(globalThis);
    this.WebSocket = options.WebSocket;
    this.sleep = options.sleep ?? ((pauseMs) => new Promise((resolve) => setTimeout(resolve, pauseMs)));
  }

  /** @returns {Promise<Model[]>} */
  async models() {
    return (await this.#get("v1/models")).data;
  }

  /** @returns {Promise<Voice[]>} */
  async voices() {
    return (await this.#get("v1/audio/voices")).voices;
  }

  /** Stores a voice, which then is there by its id. @param {NewVoice} voice @returns {Promise<{ id: string, warnings?: string[] }>} */
  async addVoice({ recording, mix, ...fields }) {
    const form = new FormData();
    for (const [name, value] of Object.entries(fields)) if (value !== undefined) form.set(name, value);
    if (recording) form.set("audio_sample", recording, "recording.wav");
    if (mix) form.set("voice", mix);
    return (await this.#request("v1/audio/voices", { method: "POST", body: form })).json();
  }

  /** @param {string} id of a stored voice */
  async deleteVoice(id) {
    await this.#request(`v1/audio/voices/${encodeURIComponent(id)}`, { method: "DELETE" });
  }

  /**
   * Speaks a whole utterance, over HTTP.
   * @param {string | Segment[]} text or the turns of a dialogue
   * @param {SpeechOptions} options
   * @param {AbortSignal} [signal]
   * @returns {Promise<Response>} whose body is the audio, as it is made
   */
  async speak(text, options, signal) {
    return this.#post("v1/audio/speech", { ...options, ...said(text) }, signal);
  }

  /**
   * Speaks a whole utterance, over HTTP, with the times of its words between the pieces of its audio.
   * @param {string | Segment[]} text or the turns of a dialogue
   * @param {SpeechOptions} options
   * @param {AbortSignal} [signal]
   * @returns {AsyncGenerator<SpeechEvent, void, undefined>} ends with `done`; throws a VivavoceError otherwise
   */
  async *events(text, options, signal) {
    const asked = { ...options, ...said(text), word_timestamps: true, stream_format: "sse" };
    yield* eventsOf(await this.#post("v1/audio/speech", asked, signal));
  }

  /**
   * Answers a conversation, in text or in speech while it is thought.
   * @param {ChatMessage[]} messages the last is the user's
   * @param {ChatOptions} options
   * @param {AbortSignal} [signal] interrupts the answer
   * @returns {AsyncGenerator<AnswerEvent, void, undefined>} ends with `end`; throws a VivavoceError otherwise
   */
  async *chat(messages, options, signal) {
    yield* answerOf(await this.#post("v1/chat/completions", { ...options, messages, stream: true }, signal));
  }

  /**
   * The text that would be said: numbers, links and signs as words. Nothing is spoken.
   * @param {string} text
   * @param {SpeechOptions} options
   * @param {AbortSignal} [signal]
   * @returns {Promise<SpokenText>}
   */
  async text(text, options, signal) {
    return (await this.#post("v1/audio/speech", { ...options, input: text, return: "text" }, signal)).json();
  }

  /**
   * Opens a live session, which takes text and returns speech at the same time.
   * @param {SpeechOptions} options
   * @returns {Promise<LiveSession>}
   */
  async live(options) {
    const url = new URL(STREAM_PATH, this.baseUrl);
    url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
    const Socket = this.WebSocket ?? globalThis.WebSocket ?? (await socketOfNode());
    const session = new LiveSession(() => new Socket(url), this.apiKey, options, this.sleep);
    await session.open();
    return session;
  }

  /** @param {string} path */
  async #get(path) {
    return (await this.#request(path, {})).json();
  }

  /** @param {string} path @param {object} body @param {AbortSignal} [signal] */
  async #post(path, body, signal) {
    const headers = { "Content-Type": "application/json" };
    return this.#request(path, { method: "POST", body: JSON.stringify(body), signal, headers });
  }

  /** @param {string} path @param {RequestInit} init */
  async #request(path, init) {
    const headers = new Headers(init.headers);
    try {
      if (this.apiKey) headers.set("Authorization", `Bearer ${this.apiKey}`);
    } catch {
      const message = "The API key has a character that no header can carry";
      throw new VivavoceError({ message, code: "invalid_api_key" });
    }
    let response;
    try {
      response = await this.fetch(new URL(path, this.baseUrl), { ...init, headers });
    } catch (error) {
      if (error instanceof DOMException && error.name === "AbortError") throw error;
      throw new VivavoceError({ message: "The server does not answer", code: "no_connection" });
    }
    if (response.ok) return response;
    const text = await response.text();
    let detail = { message: text || `The server answers ${response.status}` };
    try {
      detail = JSON.parse(text).error ?? detail;
    } catch {
      // Not Vivavoce's answer but, for example, a proxy's page: the body is the message.
    }
    throw new VivavoceError(detail);
  }
}

/**
 * Text that was said to the end of a part, for an agent's history.
 * @param {UtteranceEnd} end
 * @param {number} [playedMs] limits it to what a player has played: milliseconds of this utterance
 */
export function textSaid(end, playedMs = Infinity) {
  return end.parts.filter((part) => part.end_ms <= playedMs).map((part) => part.text).join("");
}

/** @param {string | Segment[]} text */
function said(text) {
  return typeof text === "string" ? { input: text } : { segments: text };
}

/** @returns {Promise<typeof WebSocket>} the one of the package ws */
async function socketOfNode() {
  const name = "ws";
  try {
    return (await import(name)).WebSocket;
  } catch {
    const message = "There is no WebSocket here: use Node 22, npm install ws, or give VivavoceClient a WebSocket";
    throw new VivavoceError({ message, code: "no_websocket" });
  }
}
