// Prints axe-core, which tests have check pages in a browser. deno.lock, beside this file, has its digest.
import axe from "npm:axe-core@4.14.1";

console.log(axe.source);
