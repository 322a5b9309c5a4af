// Draws the charts of a page, and redraws them for another colour scheme or for printing.
"use strict";
(() => {
  const root = document.documentElement;
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const charts = [];

  const trim = (text) => text.replace(/(\.\d*?)0+(?=\D|$)/, "$1").replace(/\.(?=\D|$)/, "");
  const wordings = {
    number: (v) => (v !== 0 && (Math.abs(v) < 1e-3 || Math.abs(v) >= 1e6) ? trim(v.toExponential(2)) : trim(v.toPrecision(4))).replace("-", "−"),
    percent: (v) => trim((100 * v).toFixed(2)) + " %",
    short: (v) => {
      const [size, letter] = v >= 1e9 ? [1e9, " G"] : v >= 1e6 ? [1e6, " M"] : v >= 1e4 ? [1e3, " k"] : [1, ""];
      return trim((v / size).toPrecision(size === 1 && v >= 1000 ? 4 : 3)) + letter;
    },
    seconds: (v) => (v < 1 ? trim((1e3 * v).toPrecision(3)) + " ms" : trim(v.toPrecision(3)) + " s"),
    text: (v) => String(v),
  };
  const escape = (text) => String(text).replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);

  // "@blue" under a key that holds a colour is the variable --blue of the style sheet
  const painted = (value, key, style) => {
    if (Array.isArray(value)) return value.map((item) => painted(item, key, style));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, painted(v, k, style)]));
    }
    const colour = typeof value === "string" && value[0] === "@" && /color$/i.test(key);
    return colour ? style.getPropertyValue("--" + value.slice(1)).trim() || "#888" : value;
  };

  const tooltip = (spec) => (found) => {
    const items = (Array.isArray(found) ? found : [found]).filter((item) => item.seriesName);
    if (!items.length) return "";
    const [say, sayX] = [wordings[spec.y], wordings[spec.x]];
    const first = items[0];
    const bars = spec.x === "text";
    const x = bars ? first.name : `${spec.option.xAxis.name || "x"} ${sayX(first.value[0])}`;
    const band = bars ? null : (spec.bands || []).find((b) => first.value[0] > b.start && first.value[0] <= b.end);
    const title = band ? `${band.name}, ${spec.option.xAxis.name} ${first.value[0] - band.start}` : x;
    const rows = items.map((item) => {
      const told = item.data && item.data.shown !== undefined ? item.data.shown : item.value; // a cell
      const [y, error] = bars ? [told, null] : [item.value[1], item.value[2]];
      const text = y === null || y === undefined ? "–" : (typeof y === "string" ? y : say(y)) + (error ? ` ± ${say(error)}` : "");
      const name = !bars && item.name && items.length === 1 ? item.name : item.seriesName;
      return `<tr><td><i style="background:${escape(item.color)}"></i>${escape(name)}</td><td>${escape(text)}</td></tr>`;
    });
    if (spec.ratio && items.length === 2 && items[0].value) {
      rows.push(`<tr><td>${escape(spec.ratio)}</td><td>${escape(wordings.percent(items[1].value / items[0].value))}</td></tr>`);
    }
    return `<div class="tip"><b>${escape(title)}</b><table>${rows.join("")}</table></div>`;
  };

  const optionOf = (spec, printing) => {
    const option = painted(spec.option, "", getComputedStyle(root));
    option.textStyle = { fontFamily: getComputedStyle(document.body).fontFamily };
    option.tooltip.formatter = tooltip(spec);
    option.yAxis.axisLabel.formatter = wordings[spec.y];
    if (spec.x !== "text") option.xAxis.axisLabel.formatter = wordings[spec.x];
    if (printing || still) option.animation = false;
    if (printing) delete option.dataZoom; // on paper: the whole chart, without zoom handles
    return option;
  };

  const draw = () => {
    const printing = root.hasAttribute("data-print");
    for (const { chart, spec } of charts) {
      const zoom = (chart.getOption() || {}).dataZoom;
      const option = optionOf(spec, printing);
      if (zoom && zoom.length && option.dataZoom) {
        for (const part of option.dataZoom) Object.assign(part, { start: zoom[0].start, end: zoom[0].end });
      }
      chart.setOption(option, { notMerge: true });
      chart.resize();
    }
  };

  for (const plot of document.querySelectorAll(".plot")) {
    const spec = JSON.parse(plot.parentElement.querySelector("script").textContent);
    plot.style.height = spec.height + "px";
    const chart = echarts.init(plot, null, { renderer: "svg" });
    if (spec.group) chart.group = spec.group;
    chart.getZr().on("dblclick", () => chart.dispatchAction({ type: "dataZoom", start: 0, end: 100 }));
    charts.push({ chart, spec });
    new ResizeObserver(() => chart.resize()).observe(plot);
  }
  for (const group of new Set(charts.map(({ spec }) => spec.group).filter(Boolean))) echarts.connect(group);
  draw();

  const paper = (on) => {
    root.toggleAttribute("data-print", on);
    draw();
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  matchMedia("print").addEventListener("change", (event) => paper(event.matches));
  addEventListener("beforeprint", () => paper(true));
  addEventListener("afterprint", () => paper(false));
})();
