"""Transactions: which batches a partition takes (`admission`)."""
