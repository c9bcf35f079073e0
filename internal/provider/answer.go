package provider

import "errors"

// ErrNoAnswer marks a call whose answer never came: the host may or may not
// have done what was asked. It travels inside a fleet.Error as its cause. An
// error without it is the host's own refusal, which had no effect.
var ErrNoAnswer = errors.New("no answer from the host")

// ErrUnauthorized marks a call that the host refused because of its token. It
// travels inside a fleet.Error as its cause.
var ErrUnauthorized = errors.New("the host refused the token")
