"""What is this report's own in the look of report.html (see `page.paper`)."""

from __future__ import annotations

STYLE = """
:root{--g0:#3563a8;--g1:#c8742c;--g2:#1f9d82;--g3:#8a5bb0;--g4:#b0435a;--g5:#7d7a2c;
--heat:53,99,168;--tint:rgba(53,99,168,.17);--cell:.55}
@media(prefers-color-scheme:dark){:root{--g0:#7fa8e6;--g1:#e8a15f;--g2:#4cc5aa;--g3:#b893dc;
--g4:#ee8095;--g5:#c3bf62;--heat:127,168,230;--tint:rgba(127,168,230,.24);--cell:.45}}
.g0{--c:var(--g0)}.g1{--c:var(--g1)}.g2{--c:var(--g2)}.g3{--c:var(--g3)}.g4{--c:var(--g4)}
.g5{--c:var(--g5)}
body{overflow-wrap:anywhere}
.report{--c:var(--accent)}.report .story{color:var(--ink);max-width:70ch;margin-bottom:.6em}
.report .why{color:var(--fail);font-weight:600;margin-top:.4em}
.facts.inner{margin:4px 0 20px}
.plots.lone{grid-template-columns:1fr}.broad{grid-column:1/-1}
.plots>div,.legend span,.x span{min-width:0}
figcaption::first-letter{text-transform:uppercase}
.note{color:var(--soft);font-size:.85rem;margin:.8em 0}
.bars{stroke:var(--card);stroke-width:1;vector-effect:non-scaling-stroke}
.cols{justify-content:normal;overflow:hidden}
.cols span{flex:1 1 0;min-width:0;text-align:center;overflow:hidden}
.tall{height:216px}.heat{background:var(--paper);border-radius:3px;overflow:hidden;
shape-rendering:crispEdges}
.down{display:flex;flex-direction:column;justify-content:space-between;font-size:.72rem;
color:var(--soft);text-align:right;line-height:1}
.h0{--a:.1}.h1{--a:.22}.h2{--a:.36}.h3{--a:.5}.h4{--a:.66}.h5{--a:.82}.h6{--a:1}
path[class^=h]{fill:rgba(var(--heat),var(--a))}
.shades{display:flex;align-items:center;gap:2px;font-size:.8rem;color:var(--soft);margin-top:6px;
padding-left:50px}
.shades i{width:16px;height:12px;background:rgba(var(--heat),var(--a))}
.shades span{margin:0 6px}
.cell{background:rgba(var(--heat),calc(var(--a)*var(--cell)))}
.wide{overflow-x:auto}.wide td,.wide th{padding:4px 8px;white-space:nowrap;overflow-wrap:normal}
.wide th{white-space:normal;vertical-align:bottom;min-width:4em}
.wide td{max-width:18em;overflow:hidden;text-overflow:ellipsis}
.wide td:first-child,.wide th:first-child{text-align:left;padding-left:0;white-space:normal;
overflow-wrap:anywhere;min-width:6em}
.bar{background:linear-gradient(90deg,var(--tint) var(--w),transparent 0);
background-size:calc(100% - 8px) 70%;background-position:8px 50%;background-repeat:no-repeat}
.none{color:var(--soft);font-style:italic}
.wide td:has(.example){max-width:none}
.example{text-align:left;white-space:normal;max-width:60ch;margin-left:auto}
.example code{overflow-wrap:anywhere;font-size:.78rem}
.sound h3{margin:1em 0 .2em}
@media(max-width:640px){.x:not(.cols) span:nth-child(even){display:none}
.wide td,.wide th{padding:4px 5px}.many span:not(:nth-child(4n+1)){visibility:hidden}
.cols span{overflow:visible;white-space:nowrap}.shades{padding-left:38px}.tall{height:170px}
.facts{gap:12px 20px}.down{font-size:.62rem}}
"""
