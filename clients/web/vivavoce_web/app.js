// @ts-check
/** The playground. */

import "./download.js";
import { kept, keep, page } from "./page.js";
import { load } from "./settings.js";
import { dropSession } from "./stage.js";

page.key.onchange = () => {
  // Blanks come along when a key is pasted.
  page.key.value = page.key.value.trim();
  keep(() => sessionStorage, "key", page.key.value);
  dropSession();
  load();
};
page.key.value = kept(() => sessionStorage, "key") ?? "";
load();
