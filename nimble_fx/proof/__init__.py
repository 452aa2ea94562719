"""What makes a schedule legal, idea by idea; `nimble_fx.verify` puts them together."""
