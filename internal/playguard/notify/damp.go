package notify

import "time"

// Sort is what a message is to who gets it.
type Sort string

// Sorts.
const (
	Problem  Sort = "problem"
	Recovery Sort = "recovery" // closes a problem of the same family
	Notice   Sort = "notice"
)

// Limit bounds the messages of one family about one subject: Most in a Window,
// and one digest of the rest after it.
type Limit struct {
	Most   int
	Window time.Duration
}

// Damp is what is remembered of one family of messages about one subject.
type Damp struct {
	Since time.Time `json:"since"`           // the window began then
	Count int       `json:"count"`           // messages in it
	Held  int       `json:"held,omitempty"`  // that were not sent
	Open  bool      `json:"open,omitempty"`  // a problem was told and has not ended
	Now   Sort      `json:"now,omitempty"`   // what the last one said, sent or not
	Type  string    `json:"type,omitempty"`  // of the event that said it
	Text  string    `json:"text,omitempty"`  // of it
	Title string    `json:"title,omitempty"` // of the subject
}

// Add decides about one more message: sent or held. A recovery of what nobody
// was told of is neither.
func (d Damp) Add(s Sort, l Limit, now time.Time) (next Damp, send bool) {
	if d.Since.IsZero() || now.Sub(d.Since) >= l.Window && d.Held == 0 {
		d.Since, d.Count = now, 0
	}
	if s == Recovery && !d.Open && d.Held == 0 {
		return d, false
	}
	d.Now = s
	switch s {
	case Problem:
		d.Open = true
	case Recovery:
		d.Open = false
	}
	if d.Count >= l.Most || d.Held > 0 {
		d.Held++
		return d, false
	}
	d.Count++
	return d, true
}

// Digest decides whether what was held is told now, in one message. The window
// that begins with it allows no others: what goes on is told once in each.
func (d Damp) Digest(l Limit, now time.Time) (next Damp, send bool) {
	if d.Held == 0 || now.Sub(d.Since) < l.Window {
		return d, false
	}
	d.Since, d.Count, d.Held = now, l.Most, 0
	return d, true
}

// Stale reports whether nothing needs to be remembered any more.
func (d Damp) Stale(l Limit, now time.Time) bool {
	return !d.Open && d.Held == 0 && now.Sub(d.Since) >= l.Window
}

// Due is when there may be something to do about it; zero: nothing.
func (d Damp) Due(l Limit) time.Time {
	if d.Held == 0 {
		return time.Time{}
	}
	return d.Since.Add(l.Window)
}
