// Package events says which events somebody wants and what they mean: it holds
// the filters of subscriptions and the words in which the life of an
// environment is told. It is pure; streams and webhooks act on it.
package events
