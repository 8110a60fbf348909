// @ts-check
/** The playground. */

import "./download.js";
import { page } from "./page.js";
import { load } from "./settings.js";
import { dropSession } from "./stage.js";

page.key.onchange = () => {
  sessionStorage.setItem("key", page.key.value);
  dropSession();
  load();
};
page.key.value = sessionStorage.getItem("key") ?? "";
load();
