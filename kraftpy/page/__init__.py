"""The cluster for a person to look at: what `/` of the metrics port shows, and `/status.json`.

* `facts`: what the node's own processes know, over the exporter's channel;
* `survey`: what is asked of the cluster, as any client would, of which `groups` are the most,
  and `asking` how;
* `watch`: when that is asked, and for how long an answer is used;
* `model`: what was found, and what is wrong with it;
* `site` answers requests: `overview`, `topic_page`, `group_page` in the frame of `layout`, made of
  `html`; and `as_json`.

It belongs to the exporter's process, which imports it when the first person looks.
"""
