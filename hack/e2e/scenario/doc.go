// Package scenario is the main job as a story that can be played: a shop commits orders with their
// events, a consumer takes what the dispatchers deliver, and a ledger says at the end whether every
// committed event arrived and no rolled-back one did.
//
// The demo plays it for a person, the end-to-end test for a machine.
package scenario
