// @ts-check
/** The controls of playing: pause, position, volume, and a file of what was heard. */

import { attempt, button, element, input, keep, kept, save } from "./page.js";
import { KEPT_S, Player } from "./player.js";

const STEP_S = 1;
const LONG_STEP_S = 10;
const VOLUME_KEY = "volume";
/** @type {Record<string, number>} seconds that a key moves the position by */
const STEPS_OF_KEYS = {
  ArrowLeft: -STEP_S,
  ArrowDown: -STEP_S,
  ArrowRight: STEP_S,
  ArrowUp: STEP_S,
  PageDown: -LONG_STEP_S,
  PageUp: LONG_STEP_S,
};

const controls = {
  play: button("play"),
  playName: element("play-name"),
  seek: input("seek"),
  time: element("time"),
  volume: input("volume"),
  save: button("save"),
};

/** @param {number} seconds */
function clock(seconds) {
  const whole = Math.floor(seconds);
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}

/** @param {HTMLElement} control @param {string} name @param {string} value */
function set(control, name, value) {
  // A screen reader tells each change, and equal values are none.
  if (control.getAttribute(name) !== value) control.setAttribute(name, value);
}

/** @param {Player} player */
export function showPosition(player) {
  const rate = player.sampleRate;
  const [at, all] = [player.position / rate, player.arrived / rate];
  controls.play.disabled = controls.seek.disabled = controls.save.disabled = player.arrived === 0;
  set(controls.play, "data-shows", player.running ? "pause" : "play");
  const name = player.running ? "Pause" : "Play";
  if (controls.playName.textContent !== name) controls.playName.textContent = name;
  controls.seek.min = String(player.forgotten / rate);
  controls.seek.max = String(all);
  // The browser moves the thumb while a finger holds it.
  if (!controls.seek.matches(":active")) controls.seek.value = String(at);
  set(controls.seek, "aria-valuetext", `${Math.floor(at)} of ${Math.floor(all)} seconds`);
  controls.time.textContent = `${clock(at)} / ${clock(all)}`;
  const kept = player.forgotten ? `Save last ${KEPT_S / 60} min` : "Save WAV";
  if (controls.save.textContent !== kept) controls.save.textContent = kept;
}

/** The volume of the control, between 0 and 1. */
export function volume() {
  return controls.volume.valueAsNumber / 100;
}

function showVolume() {
  controls.volume.setAttribute("aria-valuetext", `${controls.volume.value} %`);
}

/**
 * Lets the controls act on a player.
 * @param {() => Promise<Player>} open
 * @param {(player: Player) => void} changed called after the speech was paused or goes on
 */
export function wire(open, changed) {
  controls.play.onclick = () =>
    attempt(async () => {
      const player = await open();
      await (player.running ? player.pause() : player.play());
      changed(player);
    });
  controls.seek.oninput = () => {
    const wanted = controls.seek.valueAsNumber;
    attempt(async () => seek(await open(), wanted));
  };
  controls.seek.onkeydown = (event) => {
    const step = STEPS_OF_KEYS[event.key];
    if (!step) return;
    event.preventDefault();
    attempt(async () => {
      const player = await open();
      seek(player, player.position / player.sampleRate + step);
    });
  };
  controls.volume.oninput = () => {
    showVolume();
    keep(() => localStorage, VOLUME_KEY, controls.volume.value);
    attempt(async () => ((await open()).volume = volume()));
  };
  controls.save.onclick = () => attempt(async () => save((await open()).wav(), "vivavoce.wav"));
  controls.volume.value = kept(() => localStorage, VOLUME_KEY) ?? controls.volume.value;
  showVolume();
}

/** @param {Player} player @param {number} seconds */
function seek(player, seconds) {
  player.seek(seconds * player.sampleRate);
}
