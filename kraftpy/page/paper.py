"""Pages that are one file with nothing outside of it: for a wide screen, a phone and a printer.

Here is what such reports share: the frame of the document, and what `charts` and the elements
around them look like, by light and by dark.
"""

from __future__ import annotations

from html import escape

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
header p{margin:0;color:var(--soft);font-size:.9rem}
.ok{--c:var(--ok)}.info{--c:var(--info)}.fail{--c:var(--fail)}
.facts{display:flex;flex-wrap:wrap;gap:12px 32px;margin-top:16px}
.facts div{display:flex;flex-direction:column}.facts b{font-size:1.35rem;line-height:1.2}
.facts span{color:var(--soft);font-size:.8rem}
section{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:16px;
margin:16px 0}
details{border-top:1px solid var(--line);padding:8px 0}
summary{cursor:pointer;overflow-wrap:anywhere}
svg{display:block;width:100%;height:100%;overflow:visible}
.fill{fill:var(--c)}.line{fill:none;stroke:var(--c);stroke-width:1.6;vector-effect:non-scaling-stroke;
stroke-linejoin:round}
.grid{stroke:var(--line);vector-effect:non-scaling-stroke}
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
.files{margin:0;padding-left:1.2em}.files li{overflow-wrap:anywhere}
a{color:var(--accent)}
table{border-collapse:collapse;font-size:.85rem;width:100%}
td,th{text-align:right;padding:4px 0 4px 12px;border-top:1px solid var(--line);font-weight:400;
overflow-wrap:anywhere;vertical-align:top}
th{color:var(--soft);border:0}td:first-child{text-align:left;padding-left:0}
pre{background:var(--paper);border:1px solid var(--line);border-radius:6px;padding:10px;
overflow:auto;font-size:.82rem;margin:.4em 0 1em}
@media(max-width:640px){main{padding:0 10px 32px}section{padding:14px 12px}
figure .x,figure .legend{padding-left:38px}.plot{grid-template-columns:32px 1fr}}
@media print{section,header{break-inside:avoid}}
"""


def document(title: str, body: str, style: str = "") -> str:
    """A whole page around the content of its `main`; `style` is CSS of its own."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}{style}</style></head>"
        f"<body><main>{body}</main></body></html>\n"
    )
