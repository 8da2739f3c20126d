// Start of an exported page: unpack its parts, run the scripts among them, mount the viewer.
(async () => {
  "use strict";
  const root = document.querySelector("[data-memscope]");
  const part = (name) => document.querySelector(`script[data-part="${name}"]`)?.textContent;
  const decode = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const unpack = async (name) => {
    const stream = new Blob([decode(part(name))]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  };
  // The policy allows an inline script by the hash of its text, which holds for one added here too.
  const run = (text) => {
    const script = document.createElement("script");
    script.textContent = text;
    document.head.append(script);
  };
  try {
    if (!window.DecompressionStream) throw new Error("this browser is too old (it lacks DecompressionStream)");
    for (const name of ["bokeh", "runtime"]) if (part(name)) run(await unpack(name));
    if (!window.Bokeh) throw new Error("the BokehJS file that belongs beside this page is missing");
    if (!window.memscopeRuntime) throw new Error("the viewer's file that belongs beside this page is missing");
    const own = async () => ({ style: await unpack("style"), figures: JSON.parse(await unpack("figures")) });
    const library = window.memscopeLibrary ?? (await own());
    const style = document.createElement("style");
    style.textContent = library.style;
    document.head.append(style);
    const packed = part("payload") ?? window.memscopePayload;
    if (!packed) throw new Error("the data file that belongs beside this page is missing");
    window.memscopePayload = undefined;
    const others = window.memscopeTimelines;
    const timelines = others ? JSON.parse(new TextDecoder().decode(decode(others))) : [];
    const host = { page: true, timelines };
    window.memscope = await window.memscopeRuntime.mount(root, decode(packed), library.figures, { host });
  } catch (error) {
    root.textContent = `This page cannot be shown: ${error.message}`;
    throw error;
  }
})();
