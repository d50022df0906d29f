"""The run log: work measured into rows as it runs, and what a row keeps so that it can be predicted later; what was
measured of this machine's card.

Predicting it, and telling people of it, is done elsewhere (prediction, planning).
"""
