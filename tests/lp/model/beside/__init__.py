"""Tests of lp/model/beside."""
