-- The queues whose deliveries are shared out, and those whose keys are still to be written or removed.
SELECT q.name, f.given, f.filled, q.fair_separator FROM queen.fairness f JOIN queen.queues q ON q.id = f.queue_id WHERE q.name IS NOT NULL
