// Package rotation gives running guests another token and certificate: durable
// as an intent before the host hears of it, durable as done before the caller
// does, and taken up again by whoever owns the fleet after a crash in between.
// It only ever goes forward: what was claimed is what the guest will get.
package rotation
