// Runs the page's script on a document of its own making and prints the elements of these ids as
// HTML:  node fake_page.mjs APP_JS URL ID…
// Text is escaped, as a browser shows it; what is set as innerHTML is printed as it is.
const [, , script, url, ...ids] = process.argv;
const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

class Element {
  constructor(tag) {
    Object.assign(this, { tag, parts: [], hidden: false, style: {}, options: [], elements: {} });
  }
  set textContent(text) { this.parts = text === "" ? [] : [escaped(String(text))]; }
  set innerHTML(html) { this.parts = [String(html)]; }
  append(...parts) {
    this.parts.push(...parts.map((part) => (part instanceof Element ? part : escaped(String(part)))));
  }
  replaceChildren(...parts) { this.parts = []; this.append(...parts); }
  add() {}
  addEventListener() {}
  querySelector(name) { return (this.elements[name] ??= new Element(name)); }
  toString() {
    return `<${this.tag}${this.hidden ? " hidden" : ""}>${this.parts.join("")}</${this.tag}>`;
  }
}

const byId = {};
const document = {
  hidden: false,
  createElement: (tag) => new Element(tag),
  getElementById: (id) => (byId[id] ??= new Element(id)),
  querySelector: () => new Element("input"),
  querySelectorAll: () => [],
};
for (const name of ["mode", "status"]) {
  document.getElementById("filters").elements[name] = new Element("select");
}
const realFetch = fetch;
Object.assign(globalThis, {
  document,
  Option: class {},
  FormData: class { *[Symbol.iterator]() {} },
  location: { hash: "" },
  addEventListener() {},
  scrollTo() {},
  setInterval() {},
  fetch: (path) => realFetch(url + path),
});
await import(script);
process.on("exit", () => console.log(ids.map((id) => String(byId[id])).join("\n")));
