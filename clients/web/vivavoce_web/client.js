// @ts-check
/**
 * Client for browsers and any runtime with fetch and WebSocket. It implements the wire protocol and nothing else.
 *
 *     const client = new VivavoceClient("http://localhost:8000");
 *     const session = await client.live({ voice: "heart" });
 *     session.onaudio = (pcm) => player.push(pcm);
 *     session.say("Hello "); session.say("there."); session.end();
 */

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
 * @property {string} [ref_audio] base64 or a data: URL
 * @property {string} [ref_text]
 * @property {boolean} [x_vector_only_mode]
 * @property {boolean | string[]} [normalize] true: all that is written is read as words; false: as written; or stages
 * @property {"none" | "sentence"} [split]
 *
 * @typedef {{ id: string, languages: string[], takes_instructions: boolean, clones: boolean }} Model
 * @typedef {{ id: string, name: string, model: string }} Voice
 * @typedef {{ text: string } | { pause_s: number }} SpokenPart
 * @typedef {{ text: string, parts: SpokenPart[], language: string, stages: string[], left_out: string[], warnings: string[] }} SpokenText
 * @typedef {{ utterance_index: number, format: string, sample_rate: number }} UtteranceStart
 * @typedef {{ utterance_index: number, duration_ms: number, total_bytes: number, cancelled: boolean }} UtteranceEnd
 */

/** A refusal by the server, with OpenAI's four keys, or a failed connection. */
export class VivavoceError extends Error {
  /** @param {{ message: string, type?: string | null, param?: string | null, code?: string | null }} detail */
  constructor(detail) {
    super(detail.message);
    this.name = "VivavoceError";
    this.type = detail.type ?? null;
    this.param = detail.param ?? null;
    this.code = detail.code ?? null;
  }
}

export class VivavoceClient {
  /**
   * @param {string | URL} baseUrl
   * @param {{ apiKey?: string, fetch?: typeof fetch, WebSocket?: typeof WebSocket }} [options] the last two are for tests
   */
  constructor(baseUrl, options = {}) {
    this.baseUrl = new URL(baseUrl);
    if (!this.baseUrl.pathname.endsWith("/")) this.baseUrl.pathname += "/";
    this.apiKey = options.apiKey ?? "";
    this.fetch = options.fetch ?? globalThis.fetch.bind(globalThis);
    this.WebSocket = options.WebSocket ?? globalThis.WebSocket;
  }

  /** @returns {Promise<Model[]>} */
  async models() {
    return (await this.#get("v1/models")).data;
  }

  /** @returns {Promise<Voice[]>} */
  async voices() {
    return (await this.#get("v1/audio/voices")).voices;
  }

  /**
   * Speaks a whole utterance, over HTTP.
   * @param {string} text
   * @param {SpeechOptions} options
   * @param {AbortSignal} [signal]
   * @returns {Promise<Response>} whose body is the audio, as it is made
   */
  async speak(text, options, signal) {
    return this.#post("v1/audio/speech", { ...options, input: text }, signal);
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
    const session = new LiveSession(new this.WebSocket(url), this.apiKey);
    await session.open(options);
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
    if (this.apiKey) headers.set("Authorization", `Bearer ${this.apiKey}`);
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
      detail = JSON.parse(text).error;
    } catch {
      // Not Vivavoce's answer but, for example, a proxy's page: the body is the message.
    }
    throw new VivavoceError(detail);
  }
}

/** One connection. Set the `on…` properties to receive its events. All are optional. */
export class LiveSession {
  /** @type {(start: UtteranceStart) => void} */
  onstart = () => {};
  /** @type {(bytes: ArrayBuffer) => void} The next bytes of the utterance's file. */
  onaudio = () => {};
  /** @type {(end: UtteranceEnd) => void} */
  ondone = () => {};
  /** @type {(error: VivavoceError) => void} */
  onerror = () => {};
  /** @type {(code: number, reason: string) => void} */
  onclose = () => {};

  #socket;
  #apiKey;
  /** True after a cancel, until the audio.done or error of the cancelled utterance: its audio is dropped. */
  #deaf = false;
  /** True between the first text and the end of an utterance. */
  #inUtterance = false;
  /** @type {((result: VivavoceError | null) => void) | null} */
  #opened = null;

  /** @param {WebSocket} socket @param {string} apiKey */
  constructor(socket, apiKey) {
    this.#socket = socket;
    this.#apiKey = apiKey;
    socket.binaryType = "arraybuffer";
    socket.onmessage = (event) => this.#receive(event.data);
    socket.onclose = (event) => this.#closed(event.code, event.reason);
  }

  /**
   * @param {SpeechOptions} options
   * @returns {Promise<void>} when the server has accepted them
   */
  open(options) {
    return new Promise((resolve, reject) => {
      this.#opened = (error) => (error ? reject(error) : resolve());
      this.#socket.onopen = () => {
        const key = this.#apiKey ? { api_key: this.#apiKey } : {};
        this.#send("session.config", { ...options, ...key });
      };
    });
  }

  get isOpen() {
    return this.#socket.readyState === 1;
  }

  /** Changes the options of later utterances. @param {SpeechOptions} options */
  configure(options) {
    this.#send("session.config", options);
  }

  /** Adds text to the utterance, in fragments of any size. @param {string} text */
  say(text) {
    this.#inUtterance = true;
    this.#send("input.text", { text });
  }

  /** Ends the text of the utterance. */
  end() {
    if (this.#inUtterance) this.#send("input.done");
    this.#inUtterance = false;
  }

  /** Stops at once. Nothing more of the utterance is heard. @param {boolean} speaking true if one is running */
  cancel(speaking) {
    this.#deaf = speaking;
    this.#inUtterance = false;
    this.#send("input.cancel");
  }

  /** Closes the connection after everything sent has been spoken. */
  close() {
    this.#send("session.close");
  }

  /** Closes the connection at once. */
  drop() {
    this.#socket.close();
  }

  /** @param {string} type @param {object} [fields] */
  #send(type, fields = {}) {
    if (this.isOpen) this.#socket.send(JSON.stringify({ type, ...fields }));
  }

  /** @param {string | ArrayBuffer} data */
  #receive(data) {
    if (typeof data !== "string") {
      if (!this.#deaf) this.onaudio(data);
      return;
    }
    const message = JSON.parse(data);
    switch (message.type) {
      case "session.created":
        this.#settle(null);
        break;
      case "audio.start":
        if (!this.#deaf) this.onstart(message);
        break;
      case "audio.done":
        this.#deaf = false;
        this.ondone(message);
        break;
      case "error":
        this.#deaf = false;
        this.#fail(new VivavoceError(message.error));
    }
  }

  /** @param {VivavoceError} error */
  #fail(error) {
    if (!this.#settle(error)) this.onerror(error);
    else this.drop();
  }

  /** @param {VivavoceError | null} result */
  #settle(result) {
    const opened = this.#opened;
    this.#opened = null;
    opened?.(result);
    return opened !== null;
  }

  /** @param {number} code @param {string} reason */
  #closed(code, reason) {
    const message = reason || "The connection to the server broke";
    if (!this.#settle(new VivavoceError({ message, code: "no_connection" }))) this.onclose(code, reason);
  }
}
