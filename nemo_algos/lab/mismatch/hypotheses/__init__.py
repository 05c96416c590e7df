"""What may differ between the trainer's model and a record: each hypothesis predicts the record.

Three kinds, from cheap to dear: of bookkeeping (what is done with the log-probs), of sampling (what
is done with the logits), and of the forward (what the network is, and what it is shown).
"""
