# %% [markdown]
# # From a queue to tables, windows, an archive and proof
#
# Run the cells one after the other, in an editor that knows `# %%` or with `python docs/tutorial/pipeline.py`. You need
# `pip install 'queenmq[pipeline]'` and a running server: `queen serve`, then `export DATABASE_URL="$(queen db url)"`.

# %%
import json
import os
import tempfile

from queenmq import pipeline

url = os.environ["DATABASE_URL"]
lake = tempfile.mkdtemp(prefix="lake-")
spark = pipeline.start("local[2]")

# %% [markdown]
# ## Push a data frame
#
# A row is a message: `value` is its JSON text, `partition` where it goes. All rows arrive or none, and a write with an
# id is done once, however often the cell is run.

# %%
orders = spark.range(300).selectExpr(
    "to_json(struct(id AS order, id % 7 AS customer, double(id % 50) AS amount)) AS value",
    "concat('customer-', id % 7) AS partition",
)
for _ in range(2):
    pipeline.write(orders, url, "tutorial-orders", write_id="tutorial-first-load")

# %% [markdown]
# ## Read it as a table
#
# Every column of a message, and the value parsed by a schema. Consumer groups do not notice.

# %%
messages = pipeline.read(spark, url, "tutorial-orders", valueSchema="order BIGINT, customer INT, amount DOUBLE")
assert messages.count() == 300
by_customer = messages.groupBy("data.customer").sum("data.amount").orderBy("customer").collect()
assert len(by_customer) == 7

# %% [markdown]
# Bounds are options, and only the columns that are asked for are moved.

# %%
some = pipeline.read(
    spark,
    url,
    "tutorial-orders",
    columns="partition string, offset long",
    startingOffsets=json.dumps({"customer-0": 10}),
    partitions='["customer-0"]',
)
assert some.agg({"offset": "min"}).first()[0] == 10

# %% [markdown]
# ## A stream from queue to queue
#
# Progress is in the checkpoint. Kill it whenever you like: every message arrives once and in order.

# %%
stream = pipeline.read_stream(spark, url, "tutorial-orders", startingOffsets="earliest")
copied = stream.selectExpr("upper(value) AS value", "partition")
query = pipeline.write_stream(copied, url, "tutorial-copy", f"{lake}/checkpoint").trigger(availableNow=True).start()
query.awaitTermination()
assert pipeline.read(spark, url, "tutorial-copy").count() == 300

# %% [markdown]
# ## Windows
#
# The same declaration as in the file of `queen pipeline window`, over a batch or a stream.

# %%
declared = {
    "source": "tutorial-orders",
    "target": "tutorial-stats",
    "window": {"tumbling": "1 day"},
    "by": ["data.customer"],
    "aggregates": {"orders": "count", "revenue": "sum(data.amount)", "p90": "percentile(data.amount, 0.9)"},
}
stats = pipeline.windowed(messages, declared)
pipeline.write(stats, url, "tutorial-stats")
assert pipeline.read(spark, url, "tutorial-stats").count() >= 7

# %% [markdown]
# ## Archive, and prove that nothing is missing
#
# On the command line: `queen pipeline archive --queue tutorial-orders --lake …`, and the same with `audit`.

# %%
from queenmq.cli.main import main as queen  # noqa: E402

assert queen(["pipeline", "archive", "--queue", "tutorial-orders", "--lake", lake, "--url", url]) == 0
assert queen(["pipeline", "audit", "--queue", "tutorial-orders", "--lake", lake, "--url", url]) == 0
assert pipeline.archived(spark, url, "tutorial-orders", lake).count() == 300
