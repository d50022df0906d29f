// What the browser's part says, in the language of the page or the one that the settings name: locales/*/main.json, by
// ComfyUI's own reader. English stands in the code, where it is said.
import { app } from "../../scripts/app.js";

const ID = "Headroom.Language";
const PAGE = "page";
const LANGUAGES = { [PAGE]: "as ComfyUI", en: "English", zh: "中文", ja: "日本語" };

let translations = {};

const language = () => {
  const { setting } = app.extensionManager;
  const chosen = setting.get(ID) ?? PAGE;
  return chosen === PAGE ? (setting.get("Comfy.Locale") ?? "en") : chosen;
};

/** A sentence: `$name` in a translation stands for a value; the English where there is no translation. */
export function say(key, english, values = {}) {
  const text = translations[language()]?.headroom?.[key];
  return text ? text.replace(/\$(\w+)/g, (_, name) => values[name] ?? "") : english;
}

/** A node's name. */
export const nodeName = (kind) => translations[language()]?.nodeDefs?.[kind]?.display_name ?? kind;

/** One of the server's lines, which come with what they are made of. */
export function sayTold(line, { code, values } = {}) {
  if (!code) return line;
  const subgraph = values.subgraph ? say("in_subgraph", "", values) : "";
  const why = say(`why_${code}`, "", values);
  const more = { ...values, subgraph, why: why || values.why, name: nodeName(values.kind) };
  return say(why ? "left_alone" : code, line, more);
}

app.registerExtension({
  name: ID,
  settings: [
    {
      id: ID,
      category: ["Headroom", "Language"],
      name: "Language of Headroom's messages and dialogs",
      tooltip: "Reports, and errors that ComfyUI itself shows, are in English.",
      type: "combo",
      options: Object.entries(LANGUAGES).map(([value, text]) => ({ value, text })),
      defaultValue: PAGE,
    },
  ],
  async setup() {
    translations = await app.api
      .fetchApi("/i18n")
      .then((response) => response.json())
      .catch(() => ({})); // English, then
  },
});
