"""Reports: what the records of a JSON topic say, by time and by field, on one page.

* `definition`: what a report shows, read from TOML; `expressions`: the small language in it;
* `source`: the records, of a lake or a topic; `records`: what is in them, in Spark's workers;
* `engine`: the numbers, by Spark, with `columns` for what is written in the language;
* `content`: what the report says, as JSON; `page`, `drawing` and `style`: how it looks;
* `files`: the report's folder.
"""
