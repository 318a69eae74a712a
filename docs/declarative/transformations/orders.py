"""The messages of the queue `orders` as a table that grows with each run, its totals, and a queue of what is large."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark = SparkSession.active()
url = os.environ["DATABASE_URL"]


@dp.table
def orders() -> DataFrame:
    found = spark.readStream.format("queen").option("url", url).option("subscribe", "orders")
    return found.option("startingOffsets", "earliest").option("valueSchema", "amount DOUBLE").load()


@dp.materialized_view
def totals() -> DataFrame:
    amounts = spark.read.table("orders").groupBy("partition")
    return amounts.agg(f.sum("data.amount").alias("revenue"), f.count("*").alias("orders"))


dp.create_sink("large_orders", "queen", {"url": url, "queue": "large-orders"})


@dp.append_flow(target="large_orders")
def large_orders() -> DataFrame:
    return spark.readStream.table("orders").where("data.amount >= 100").select("value", "partition", "transactionId")
