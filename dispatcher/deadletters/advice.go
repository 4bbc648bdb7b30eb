package deadletters

import "github.com/outbox-operator/outbox-operator/dispatcher"

// Advice is what to do about a death, in one sentence.
func Advice(reason dispatcher.DeadReason, class string) string { return "" }
