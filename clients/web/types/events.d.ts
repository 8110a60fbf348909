/** @typedef {import("./client.js").SpeechEvent} SpeechEvent */
/** @typedef {import("./client.js").AnswerEvent} AnswerEvent */
/** @param {Response} response @returns {AsyncGenerator<SpeechEvent, void, undefined>} */
export function eventsOf(response: Response): AsyncGenerator<SpeechEvent, void, undefined>;
/** @param {Response} response of a chat @returns {AsyncGenerator<AnswerEvent, void, undefined>} */
export function answerOf(response: Response): AsyncGenerator<AnswerEvent, void, undefined>;
export type SpeechEvent = import("./client.js").SpeechEvent;
export type AnswerEvent = import("./client.js").AnswerEvent;
