// Package webhooks sends events to URLs that somebody subscribed, at least
// once each: what was not recorded as sent is sent again, under the same id.
// The log of events is the queue. Each webhook keeps its place in it, and a
// bounded list of messages that were set aside to be tried again. Messages are
// signed after Standard Webhooks, and none goes to an address that only the
// control plane's own network knows, unless that is allowed.
package webhooks
