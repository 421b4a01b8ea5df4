"""What is the consistency report's own in the look of report.html (see `page.paper`)."""

from __future__ import annotations

STYLE = """
header.ok h1{color:var(--ok)}
header.fail h1{color:var(--fail)}header.info h1{color:var(--info)}
.verdicts{list-style:none;margin:0;padding:0;display:grid;gap:0 24px;
grid-template-columns:repeat(auto-fill,minmax(min(100%,320px),1fr))}
.verdicts li{display:grid;grid-template-columns:5.2em 1fr;gap:10px;padding:10px 0;
border-top:1px solid var(--line)}
.verdicts p{margin:0;font-size:.9rem;overflow-wrap:anywhere}
.verdicts p+p{color:var(--c);font-weight:600}
.idle{--c:var(--soft)}
.verdicts li.fail,.verdicts li.info{grid-column:1/-1}
.runs{grid-template-columns:1fr}
.badge{align-self:start;text-align:center;font-size:.75rem;font-weight:700;letter-spacing:.03em;
color:var(--on);background:var(--c);border-radius:99px;padding:2px 8px;margin-top:2px}
.op{display:grid;gap:2px;padding:8px 0 8px 12px;border-left:3px solid var(--line);margin:6px 0}
.op span{color:var(--c);font-weight:600;font-size:.85rem}
.op code{font-size:.78rem;overflow-wrap:anywhere;color:var(--soft)}
.op .lane{background:var(--paper);border-radius:3px}
.lane{height:14px;overflow:hidden}
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
.legend .phase-key,.legend .wrong-key{width:0;height:14px;border-radius:0;background:none;
border-left:2px dashed var(--accent)}
.legend .wrong-key{border-left:2px solid var(--fail)}
.story{color:var(--ink)!important;max-width:70ch;margin-top:10px!important;font-size:.95rem!important}
.why{color:var(--fail)!important;font-weight:600;overflow-wrap:anywhere}
.promised{color:var(--soft);font-size:.9rem;margin:.4em 0}
.felt td:nth-child(2),.felt th:nth-child(2){text-align:left}
.busy{--c:var(--busy)}
.dots{fill:none;stroke:var(--c);stroke-width:3;stroke-linecap:round;
vector-effect:non-scaling-stroke;opacity:.7}
path.wrong{stroke:var(--fail);stroke-width:2;vector-effect:non-scaling-stroke}
section.wrong{border-top:6px solid var(--fail)}
.p50{--c:var(--ok)}.p99{--c:var(--info)}.max{--c:var(--soft)}.unread{--c:var(--accent)}
.odd>:first-child{grid-column:1/-1}
@media(max-width:640px){.felt,.felt tbody{display:block}.felt tr:first-child{display:none}
.felt tr{display:grid;grid-template-columns:repeat(5,1fr);gap:0 8px;padding:8px 0;
border-top:1px solid var(--line)}.felt td{border:0;padding:0;text-align:left}
.felt td:nth-child(2){grid-column:2/-1}
.felt td[data-of]::before{content:attr(data-of);display:block;
color:var(--soft);font-size:.7rem}
.row{grid-template-columns:1fr;gap:0}.row>span{text-align:left}
.back{inset:0}.rows-x{padding-left:0}}
"""
