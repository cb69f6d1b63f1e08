// Runs the search of the built site, as its page does, and prints the pages that each query finds:
//
//     node scripts/site_search.mjs build/site/html resume "own model"    ->    {"resume": ["runs.html", …], …}
import { readFileSync, readdirSync } from "node:fs";
import { runInThisContext } from "node:vm";

const [html, ...queries] = process.argv.slice(2);
const workers = `${html}/assets/javascripts/workers`;
const worker = readdirSync(workers).find((name) => name.startsWith("search."));
const index = JSON.parse(readFileSync(`${html}/search.json`, "utf8"));

// The worker answers each message with one.
const [BEGIN, QUERY, RESULT] = [0, 2, 3];
const answers = [];
globalThis.self = { postMessage: (answer) => answers.shift()(answer) };
runInThisContext(readFileSync(`${workers}/${worker}`, "utf8"));
const ask = (type, data) => new Promise((answered) => {
  answers.push(answered);
  self.onmessage({ data: structuredClone({ type, data }) }); // as a browser posts it
});

const filter = {
  input: { type: "operator", data: { operator: "and", operands: [] } },
  aggregation: { input: [{ type: "term", data: { field: "tags" } }] },
};
await ask(BEGIN, index);
const found = {};
for (const input of queries) {
  const { type, data } = await ask(QUERY, { input, filter });
  if (type !== RESULT) throw new Error(`the search has no answer to ${input}`);
  const pages = data.items.map((item) => index.items[item.id].location.split("#")[0]);
  found[input] = [...new Set(pages)];
}
console.log(JSON.stringify(found));
