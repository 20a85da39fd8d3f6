// The functions and classes of the pages' scripts, as they are: a page joins its scripts into one, which shares its names.

const PAGES = new URL("../../ebcli/pages/", import.meta.url);

// `names` are what is wanted of the scripts, `browser` what they find in a browser.
export function load(scripts, names, browser = {}) {
  const sources = scripts.map((script) => Deno.readTextFileSync(new URL(script, PAGES)));
  const program = `${sources.join("\n")}\nreturn { ${names.join(", ")} };`;
  return new Function(...Object.keys(browser), program)(...Object.values(browser));
}

// A document with the data of a page, and nothing else.
export function documentOf(data) {
  const part = () => ({ textContent: JSON.stringify(data), addEventListener() {} });
  return { documentElement: { dataset: {} }, getElementById: part };
}
