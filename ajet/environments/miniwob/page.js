// Starts a task of MiniWoB, lists what its page shows, and finds where to click. The environment
// evaluates this once in each page; `core` and the WOB_ globals are those of MiniWoB's core.js.
var ajetPage = (() => {
  const CONTROLS = "a, button, input, select, textarea";
  const NOT_SHOWN =
    "#query, #reward-display, #sync-task-cover, #click-canvas, .ui-resizable-handle, " +
    "br, script, style, template";
  let elements = []; // element N has the number N + 1
  let maxText = 0;

  // Starts the instance of a seed. The longest time that a timer takes keeps MiniWoB's from ending it.
  function start(seed, maxTextChars) {
    maxText = maxTextChars;
    core.EPISODE_MAX_TIME = 2 ** 31 - 1;
    Math.seedrandom(seed);
    core.startEpisodeReal();
    core.cover_div.onclick = null; // it covers a finished page; a click there would start another
  }

  function read() {
    elements = [];
    const lines = [];
    visit(document.body, lines);
    const utterance = core.getUtterance();
    return {
      utterance: utterance.utterance ?? utterance, // some tasks give an object
      lines,
      count: elements.length,
      isOver: WOB_DONE_GLOBAL,
      reward: WOB_RAW_REWARD_GLOBAL, // WOB_REWARD_GLOBAL shrinks with time
    };
  }

  // Lists controls and the innermost elements with a number, and text between elements without one.
  function visit(node, lines) {
    if (node instanceof Text) {
      const isOfControl = node.parentElement.closest("label")?.control;
      if (!isOfControl && squashed(node.data)) lines.push(shortened(node.data));
    } else if (node instanceof Element && !node.matches(NOT_SHOWN)) {
      if (!node.checkVisibility({ visibilityProperty: true })) return;
      const isInnermost = ![...node.children].some((child) => !child.matches("br"));
      if (!node.matches(CONTROLS) && !isInnermost) {
        node.childNodes.forEach((child) => visit(child, lines));
        return;
      }
      const box = node.getBoundingClientRect();
      if (box.width === 0 || box.height === 0) return;
      const description = described(node);
      if (description === "div") return; // an empty one, which nobody sees
      elements.push(node);
      lines.push(`[${elements.length}] ${description}`);
    }
  }

  function described(element) {
    const tag = element instanceof HTMLInputElement ? element.type : element.localName;
    const text = shortened(textOf(element));
    const words = [text ? `${tag} "${text}"` : [tag, ...element.classList].join(".")];
    if (element instanceof SVGElement) words.push(element.getAttribute("fill") ?? "");
    else if (!text && !element.matches(CONTROLS)) words.push(background(element));
    if (element instanceof HTMLSelectElement) {
      words.push("of", [...element.options].map((option) => squashed(option.text)).join(", "));
    }
    if (element.checked) words.push("checked");
    if (element.disabled) words.push("disabled");
    if (element === document.activeElement) words.push("focused");
    return words.filter(Boolean).join(" ");
  }

  function textOf(element) {
    if (element instanceof HTMLSelectElement) return element.selectedOptions[0]?.text ?? "";
    const label = element.labels?.[0]?.textContent ?? "";
    if (element.matches("[type=checkbox], [type=radio]")) return label;
    return element.value || element.textContent || label || element.placeholder || "";
  }

  function background(element) {
    const color = getComputedStyle(element).backgroundColor;
    return color === "rgba(0, 0, 0, 0)" ? "" : color.replaceAll(" ", "");
  }

  function squashed(text) {
    return text.replace(/\s+/g, " ").trim();
  }

  function shortened(text) {
    const line = squashed(text);
    return line.length > maxText ? `${line.slice(0, maxText)}…` : line;
  }

  // Returns a point of the element that nothing covers, its middle if possible; null if there is
  // none.
  function point(number) {
    const element = elements[number - 1];
    if (!element?.isConnected) return null;
    element.scrollIntoView({ block: "nearest", inline: "nearest" });
    for (const box of element.getClientRects()) {
      for (const down of [0.5, 0.1, 0.9]) {
        for (const right of [0.5, 0.1, 0.9]) {
          const [x, y] = [box.x + right * box.width, box.y + down * box.height];
          const hit = document.elementFromPoint(x, y);
          if (hit && element.contains(hit)) return [x, y];
        }
      }
    }
    return null;
  }

  function clickable() {
    return elements.map((_, index) => index + 1).filter(point);
  }

  function takesText(number) {
    const untyped = "button checkbox color file image radio range reset submit".split(" ");
    const element = elements[number - 1];
    return element instanceof HTMLInputElement
      ? !untyped.includes(element.type)
      : element instanceof HTMLTextAreaElement;
  }

  function selectText(number) {
    elements[number - 1].select();
  }

  // Chooses an option as a user does with the keyboard, whose list no page can see.
  function choose(number, text) {
    const element = elements[number - 1];
    if (!(element instanceof HTMLSelectElement)) return false;
    const option = [...element.options].find((each) => squashed(each.text) === text);
    if (!option) return false;
    element.value = option.value;
    element.dispatchEvent(new Event("input", { bubbles: true }));
    element.dispatchEvent(new Event("change", { bubbles: true }));
    return true;
  }

  return { start, read, point, clickable, takesText, selectText, choose };
})();
