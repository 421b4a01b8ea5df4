"""The look of report.html."""

from __future__ import annotations

STYLE = """
:root{color-scheme:light dark;
--paper:#fbfaf7;--card:#fff;--ink:#1d2328;--soft:#66707a;
--line:#e3e1da;--ok:#1f9d82;
--info:#e3a008;--fail:#d1434f;--fault:rgba(209,67,79,.16);--fault-lane:#b4505c;
--accent:#3563a8;--busy:#a9d8cc;--on:#fff}
@media(prefers-color-scheme:dark){:root{--paper:#14181b;--card:#1c2226;--ink:#e8eaea;--soft:#98a3ab;
--line:#2e363b;--ok:#35b89b;--info:#e9b43c;--fail:#ee6b74;--fault:rgba(238,107,116,.2);
--fault-lane:#d3747f;--accent:#7fa8e6;--busy:#245a50;--on:#14181b}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
main{max-width:1080px;margin:0 auto;padding:0 16px 48px}
h1{font-size:clamp(1.5rem,5vw,2.2rem);line-height:1.15;margin:.1em 0 .3em;text-wrap:balance}
h2{font-size:1.15rem;margin:0 0 .4em}h3{font-size:.95rem;margin:0}
p{margin:.2em 0 .8em}small{color:var(--soft);font-size:.8rem}
header{margin:16px 0;padding:20px 16px;border:1px solid var(--line);border-top:6px solid var(--c);
border-radius:10px;background:var(--card)}
header p{margin:0;color:var(--soft);font-size:.9rem}header.ok h1{color:var(--ok)}
header.fail h1{color:var(--fail)}header.info h1{color:var(--info)}
.ok{--c:var(--ok)}.info{--c:var(--info)}.fail{--c:var(--fail)}
.facts{display:flex;flex-wrap:wrap;gap:12px 32px;margin-top:16px}
.facts div{display:flex;flex-direction:column}.facts b{font-size:1.35rem;line-height:1.2}
.facts span{color:var(--soft);font-size:.8rem}
section{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:16px;
margin:16px 0}
.verdicts{list-style:none;margin:0;padding:0;display:grid;gap:0 24px;
grid-template-columns:repeat(auto-fill,minmax(min(100%,320px),1fr))}
.verdicts li{display:grid;grid-template-columns:5.2em 1fr;gap:10px;padding:10px 0;
border-top:1px solid var(--line)}
.verdicts p{margin:0;font-size:.9rem;overflow-wrap:anywhere}
.verdicts p+p{color:var(--c);font-weight:600}
.verdicts li.fail,.verdicts li.info{grid-column:1/-1}
.runs{grid-template-columns:1fr}.badge{align-self:start;text-align:center;font-size:.75rem;font-weight:700;letter-spacing:.03em;
color:var(--on);background:var(--c);border-radius:99px;padding:2px 8px;margin-top:2px}
details{border-top:1px solid var(--line);padding:8px 0}
summary{cursor:pointer;overflow-wrap:anywhere}
.op{display:grid;gap:2px;padding:8px 0 8px 12px;border-left:3px solid var(--line);margin:6px 0}
.op span{color:var(--c);font-weight:600;font-size:.85rem}
.op code{font-size:.78rem;overflow-wrap:anywhere;color:var(--soft)}
.op .lane{background:var(--paper);border-radius:3px}
svg{display:block;width:100%;height:100%;overflow:visible}
.lane{height:14px;overflow:hidden}
.fill{fill:var(--c)}.line{fill:none;stroke:var(--c);stroke-width:1.6;vector-effect:non-scaling-stroke;
stroke-linejoin:round}
.grid{stroke:var(--line);vector-effect:non-scaling-stroke}
.fault{fill:var(--fault);--c:var(--fault)}
.phase{stroke:var(--accent);stroke-width:1.5;stroke-dasharray:4 3;vector-effect:non-scaling-stroke}
.rows{position:relative}
.row,.back,.rows-x{display:grid;grid-template-columns:minmax(52px,auto) 1fr;gap:8px}
.row{grid-template-columns:172px 1fr;align-items:center;position:relative;padding:1px 0}
.row>span{font-size:.75rem;color:var(--soft);text-align:right;white-space:nowrap;overflow:hidden;
text-overflow:ellipsis}
.row .fault{fill:var(--fault-lane)}
.row i{font-style:normal;opacity:.75}.row b{font-weight:600;color:var(--fault-lane)}
.back{position:absolute;inset:0 0 0 180px;display:block}.rows-x{display:block;padding-left:180px}
.plots{display:grid;gap:20px 32px;
grid-template-columns:repeat(auto-fit,minmax(min(100%,380px),1fr))}
figure{margin:0;min-width:0}figcaption{font-weight:600;font-size:.95rem;margin-bottom:10px}
figcaption small{font-weight:400}
.plot{display:grid;grid-template-columns:44px 1fr;gap:6px;height:150px}
.y{position:relative;font-size:.72rem;color:var(--soft)}
.y span{position:absolute;right:0;transform:translateY(-50%)}
.x{display:flex;justify-content:space-between;font-size:.72rem;color:var(--soft);padding-top:6px}
figure .x{padding-left:50px}
.legend{display:flex;flex-wrap:wrap;gap:4px 16px;font-size:.8rem;color:var(--soft);margin-top:6px}
figure .legend{padding-left:50px}
.legend span{display:inline-flex;align-items:center;gap:6px}
.legend i{width:12px;height:12px;border-radius:3px;background:var(--c)}
.legend .phase-key,.legend .wrong-key{width:0;height:14px;border-radius:0;background:none;
border-left:2px dashed var(--accent)}
.legend .wrong-key{border-left:2px solid var(--fail)}
.story{color:var(--ink)!important;max-width:70ch;margin-top:10px!important;font-size:.95rem!important}
.why{color:var(--fail)!important;font-weight:600;overflow-wrap:anywhere}
.promised{color:var(--soft);font-size:.9rem;margin:.4em 0}
.felt td:nth-child(2),.felt th:nth-child(2){
text-align:left}.files{margin:0;padding-left:1.2em}.files li{overflow-wrap:anywhere}
a{color:var(--accent)}
.busy{--c:var(--busy)}
.dots{fill:none;stroke:var(--c);stroke-width:3;stroke-linecap:round;
vector-effect:non-scaling-stroke;opacity:.7}
path.wrong{stroke:var(--fail);stroke-width:2;vector-effect:non-scaling-stroke}
section.wrong{border-top:6px solid var(--fail)}
.p50{--c:var(--ok)}.p99{--c:var(--info)}.max{--c:var(--soft)}.unread{--c:var(--accent)}
table{border-collapse:collapse;font-size:.85rem;width:100%}
td,th{text-align:right;padding:4px 0 4px 12px;border-top:1px solid var(--line);font-weight:400;
overflow-wrap:anywhere;vertical-align:top}
th{color:var(--soft);border:0}td:first-child{text-align:left;padding-left:0}
pre{background:var(--paper);border:1px solid var(--line);border-radius:6px;padding:10px;
overflow:auto;font-size:.82rem;margin:.4em 0 1em}
.odd>:first-child{grid-column:1/-1}
@media(max-width:640px){.felt,.felt tbody{display:block}.felt tr:first-child{display:none}
.felt tr{display:grid;grid-template-columns:repeat(5,1fr);gap:0 8px;padding:8px 0;
border-top:1px solid var(--line)}.felt td{border:0;padding:0;text-align:left}
.felt td:nth-child(2){grid-column:2/-1}
.felt td[data-of]::before{content:attr(data-of);display:block;
color:var(--soft);font-size:.7rem}
.row{grid-template-columns:1fr;gap:0}.row>span{text-align:left}
.back{inset:0}.rows-x{padding-left:0}main{padding:0 10px 32px}section{padding:14px 12px}
figure .x,figure .legend{padding-left:38px}.plot{grid-template-columns:32px 1fr}}
@media print{section,header{break-inside:avoid}}
"""
