/** @typedef {import("./client.js").SpeechEvent} SpeechEvent */
/** @param {Response} response @returns {AsyncGenerator<SpeechEvent, void, undefined>} */
export function eventsOf(response: Response): AsyncGenerator<SpeechEvent, void, undefined>;
export type SpeechEvent = import("./client.js").SpeechEvent;
