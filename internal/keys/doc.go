// Package keys makes, shows and revokes API keys. They lie in the state like
// everything else, so a look-up is one in memory, a revocation counts from its
// commit on, and a server that takes over knows what the one before knew: there
// is no cache beside the state that could be behind it.
package keys
