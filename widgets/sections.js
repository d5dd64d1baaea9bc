/* The sections of kinds of work: written by tools/page_types.py from transient_magics/kinds.py. */

import { sections as study } from "./study.js";
import { sections as bag } from "./bag.js";

/** @type {Record<string, (send: (message: object) => void) => any>} */
export const SECTIONS = { study, bag };
