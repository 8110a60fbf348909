// @ts-check
/** A live session: text goes to the server while its speech comes back. */

/** Pause before each further attempt to connect. */
const BACKOFF_MS = [250, 500, 1000, 2000, 4000];
/** Further attempts of a session's first connection, if nothing answers: the address may be wrong. */
const FIRST_ATTEMPTS = 2;
/** Close codes after which a new connection may succeed: broken, failed, restarting, full. */
const TRY_AGAIN_LATER = [1006, 1011, 1012, 1013];
/** Codes of refusals after which a new connection may succeed. */
const AGAIN_CODES = ["not_serving", "queue_full"];
/** Length of a message of text: even if each character is escaped, the server takes it. */
const MESSAGE_CHARS = 16384;
const BROKEN = "The connection to the server broke";

/**
 * @typedef {import("./client.js").SpeechOptions} SpeechOptions
 * @typedef {import("./client.js").Message} Message
 * @typedef {import("./client.js").UtteranceStart} UtteranceStart
 * @typedef {import("./client.js").UtteranceEnd} UtteranceEnd
 * @typedef {import("./client.js").SpokenWord} SpokenWord
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

/**
 * A live session. Set the `on…` properties to receive its events. All are optional.
 *
 * If the connection is lost before any of an utterance was heard, the session connects again, with growing pauses, and
 * sends the text again. If some of it was heard, `onerror` is called with the code stream_broken, so that nothing is heard
 * twice. Text with `split: "sentence"` is never sent again. The next text opens a new connection.
 */
export class LiveSession {
  /** @type {(start: UtteranceStart) => void} */
  onstart = () => {};
  /** @type {(bytes: ArrayBuffer) => void} The next bytes of the utterance's file. */
  onaudio = () => {};
  /** @type {(words: SpokenWord[]) => void} Words of the utterance whose times are known, with `word_timestamps`. */
  onwords = () => {};
  /** @type {(end: UtteranceEnd) => void} */
  ondone = () => {};
  /** @type {(error: VivavoceError) => void} */
  onerror = () => {};
  /** @type {Record<string, number>} The server's limits, by name: for example max_utterance_chars. */
  limits = {};
  /** @type {(code: number, reason: string) => void} Called once, after close() or drop(). */
  onclose = () => {};

  #dial;
  #apiKey;
  #sleep;
  /** The options of the first utterance in the log. */
  #options;
  /** @type {Message[]} What a new connection needs: all messages since the first utterance that has not ended. */
  #log = [];
  /** @type {WebSocket | null} */
  #socket = null;
  /** True once the server has accepted the options on this connection. */
  #ready = false;
  /** True once a server has answered on any connection. */
  #answered = false;
  /** @type {Promise<void> | null} */
  #connecting = null;
  /** Connections that broke since audio was heard last. */
  #losses = 0;
  /** True after a cancel, until the audio.done or error of the cancelled utterance: its audio is dropped. */
  #deaf = false;
  /** True between the first text and the end of an utterance. */
  #inUtterance = false;
  /** True while the first utterance in the log speaks: its audio.start has come. */
  #started = false;
  /** True if the first utterance in the log was refused. */
  #refused = false;
  /** True once some of the first utterance in the log was heard. */
  #heard = false;
  /** True once text was sent that is not in the log, because it is split into utterances that the log cannot tell. */
  #unlogged = false;
  #splits = false;
  /** True while the server ignores the rest of an utterance that broke off. */
  #ignored = false;
  #closing = false;
  #over = false;

  /**
   * @param {() => WebSocket} dial
   * @param {string} apiKey
   * @param {SpeechOptions} options
   * @param {(pauseMs: number) => Promise<void>} sleep
   */
  constructor(dial, apiKey, options, sleep) {
    this.#dial = dial;
    this.#apiKey = apiKey;
    this.#options = options;
    this.#splits = options.split === "sentence";
    this.#sleep = sleep;
  }

  /**
   * @returns {Promise<void>} when the server has accepted the options. Rejects after three attempts without an answer.
   */
  async open() {
    try {
      await this.#connect(0);
    } catch (error) {
      this.#over = true;
      throw error;
    }
  }

  /** True until close() or drop(). A lost connection is opened again with the next text. */
  get isOpen() {
    return !this.#closing && !this.#over;
  }

  /** Changes the options of later utterances. @param {SpeechOptions} options */
  async configure(options) {
    this.#mustBeOpen();
    const message = { type: "session.config", ...options };
    this.#splits = options.split === "sentence";
    if (this.#log.length) this.#post(message);
    else {
      this.#options = options;
      if (this.#ready) this.#socket?.send(JSON.stringify(message));
    }
  }

  /** Adds text to the utterance, in fragments of any size. Rejects after close(). @param {string} text */
  async say(text) {
    this.#mustBeOpen();
    if (!text) return;
    this.#inUtterance = true;
    for (let at = 0; at < text.length; at += MESSAGE_CHARS) {
      this.#post({ type: "input.text", text: text.slice(at, at + MESSAGE_CHARS) });
    }
  }

  /** Ends the text of the utterance. */
  end() {
    if (this.#inUtterance && this.isOpen) this.#post({ type: "input.done" });
    this.#inUtterance = this.#ignored = false;
  }

  /** Stops at once. Nothing more of the utterance is heard. @param {boolean} speaking true if one is running */
  cancel(speaking) {
    // The server drops waiting messages: the last options are sent again.
    const config = this.#log.findLast(({ type }) => type === "session.config");
    this.#log = [];
    this.#inUtterance = this.#ignored = this.#started = this.#heard = this.#refused = this.#unlogged = false;
    if (config) this.#options = optionsOf(config);
    if (!this.#ready) return;
    this.#deaf = speaking;
    this.#socket?.send(JSON.stringify({ type: "input.cancel" }));
    if (config) this.#socket?.send(JSON.stringify(config));
  }

  /** Closes the connection after everything sent has been spoken. */
  close() {
    if (!this.isOpen) return;
    this.end();
    this.#closing = true;
    if (this.#ready || this.#log.length) this.#post({ type: "session.close" });
    else this.#finish(1000, "");
  }

  /** Closes the connection at once. */
  drop() {
    if (this.#over) return;
    this.#closing = true;
    this.#log = [];
    if (this.#socket) this.#socket.close();
    else this.#finish(1000, "");
  }

  #mustBeOpen() {
    if (!this.isOpen) throw new VivavoceError({ message: "The session is closed", code: "session_closed" });
  }

  /** Sends a message now or once there is a connection. @param {Message} message */
  #post(message) {
    const logged = !this.#ignored && !(this.#splits && this.#ready);
    if (logged) this.#log.push(message);
    else this.#unlogged ||= this.#splits;
    if (this.#ready) this.#socket?.send(JSON.stringify(message));
    else if (this.#log.length) this.#reconnect(0);
  }

  /** Connects, unless that is under way, and tells a failure. @param {number} pauseMs */
  #reconnect(pauseMs) {
    if (!this.#connecting) this.#connect(pauseMs).catch((error) => this.#giveUp(error));
  }

  /** @param {number} pauseMs */
  #connect(pauseMs) {
    this.#connecting = this.#connectAgain(pauseMs).finally(() => (this.#connecting = null));
    return this.#connecting;
  }

  /** Connects, with growing pauses between the attempts. Then sends the log. @param {number} firstPauseMs */
  async #connectAgain(firstPauseMs) {
    if (firstPauseMs) await this.#sleep(firstPauseMs);
    for (let attempt = 0; ; attempt++) {
      this.#mustGoOn();
      const failure = await this.#attempt();
      if (failure === null) break;
      const most = this.#answered ? BACKOFF_MS.length : FIRST_ATTEMPTS;
      if (attempt >= most || !failure.again) throw failure.error;
      await this.#sleep(BACKOFF_MS[attempt]);
    }
    this.#mustGoOn();
    this.#ready = true;
    for (const message of this.#log) this.#socket?.send(JSON.stringify(message));
    if (!this.#splits) return;
    this.#unlogged = this.#log.length > 0;
    this.#log = [];
  }

  #mustGoOn() {
    if (this.#over) throw new VivavoceError({ message: "The session is closed", code: "session_closed" });
  }

  /** @returns {Promise<{ error: VivavoceError, again: boolean } | null>} null once the options are accepted */
  #attempt() {
    return new Promise((resolve) => {
      const socket = this.#dial();
      this.#socket = socket;
      socket.binaryType = "arraybuffer";
      socket.onerror = () => {}; // a close event follows
      socket.onopen = () => {
        const key = this.#apiKey ? { api_key: this.#apiKey } : {};
        socket.send(JSON.stringify({ type: "session.config", ...this.#options, ...key }));
      };
      socket.onmessage = ({ data }) => {
        const message = JSON.parse(data);
        this.#answered = true;
        if (message.type === "error") {
          const error = new VivavoceError(message.error);
          resolve({ error, again: AGAIN_CODES.includes(error.code ?? "") });
          this.#detach(socket);
          return;
        }
        this.limits = message.limits ?? {};
        socket.onmessage = (event) => this.#receive(event.data);
        socket.onclose = ({ code, reason }) => this.#lose(code, reason);
        resolve(null);
      };
      socket.onclose = ({ code, reason }) => {
        this.#socket = null;
        resolve({ error: new VivavoceError({ message: reason || BROKEN, code: "no_connection" }), again: TRY_AGAIN_LATER.includes(code) });
        if (this.#closing) this.#finish(code, reason);
      };
    });
  }

  /** @param {WebSocket} socket */
  #detach(socket) {
    this.#socket = null;
    socket.onmessage = socket.onclose = null;
    socket.close();
  }

  /** @param {string | ArrayBuffer} data */
  #receive(data) {
    if (typeof data !== "string") {
      if (this.#deaf) return;
      this.#heard = true;
      this.#losses = 0;
      this.onaudio(data);
      return;
    }
    const message = JSON.parse(data);
    switch (message.type) {
      case "audio.start":
        if (this.#deaf) return;
        if (this.#refused && this.#hasNext()) this.#forget();
        this.#started = true;
        this.onstart(message);
        break;
      case "audio.words":
        if (!this.#deaf) this.onwords(message.words);
        break;
      case "audio.done":
        if (!this.#deaf && this.#started && this.#log.length) this.#forget();
        this.#deaf = this.#started = this.#heard = false;
        this.ondone(message);
        break;
      case "error":
        if (message.error.code === "not_serving") return; // the connection is closed next
        this.#refused ||= !this.#started && !this.#deaf && this.#log.length > 0;
        this.#deaf = false;
        this.onerror(new VivavoceError(message.error));
    }
  }

  /** True if the log has text of a second utterance: its start shows that a refused first one will not speak. */
  #hasNext() {
    const end = this.#log.findIndex(({ type }) => type === "input.done");
    return end >= 0 && this.#log.slice(end).some(({ type }) => type === "input.text");
  }

  /** Removes the first utterance from the log: it has ended. */
  #forget() {
    const end = this.#log.findIndex(({ type }) => type === "input.done");
    this.#ignored = end < 0 && this.#inUtterance;
    const ended = this.#log.splice(0, end < 0 ? this.#log.length : end + 1);
    while (this.#log[0]?.type === "session.config") ended.push(...this.#log.splice(0, 1));
    const config = ended.findLast(({ type }) => type === "session.config");
    if (config) this.#options = optionsOf(config);
    this.#started = this.#heard = this.#refused = false;
  }

  /** @param {number} code @param {string} reason */
  #lose(code, reason) {
    this.#socket = null;
    this.#ready = this.#deaf = false;
    const done = this.#closing && code === 1000;
    const cut = !done && (this.#heard || this.#unlogged || (this.#started && !this.#log.length));
    if (done) this.#log = [];
    else if (cut || this.#refused) this.#forget();
    this.#started = this.#unlogged = false;
    const error = new VivavoceError({ message: reason || BROKEN, code: "stream_broken" });
    if (cut) this.onerror(error);
    if (!this.#log.some(({ type }) => type === "input.text")) {
      if (this.#closing) this.#finish(code, reason);
    } else if (!TRY_AGAIN_LATER.includes(code) || this.#losses === BACKOFF_MS.length) this.#giveUp(error);
    else this.#reconnect(BACKOFF_MS[this.#losses++]);
  }

  /** @param {VivavoceError} error */
  #giveUp(error) {
    if (this.#over) return;
    const wanted = this.#log.length > 0; // else the utterance was cancelled meanwhile
    this.#log = [];
    this.#losses = 0;
    this.#started = this.#heard = this.#refused = false;
    this.#ignored = this.#inUtterance;
    if (wanted) this.onerror(error);
    if (this.#closing) this.#finish(1006, error.message);
  }

  /** @param {number} code @param {string} reason */
  #finish(code, reason) {
    if (this.#over) return;
    this.#over = true;
    this.onclose(code, reason);
  }
}

/** @param {Message} message @returns {SpeechOptions} */
function optionsOf({ type, ...options }) {
  return options;
}
