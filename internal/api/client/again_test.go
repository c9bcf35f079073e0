package client

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestWhatComesOnIsNotGivenUp: only a call that does not come on ends, and the
// time before its first cut does not count.
func TestWhatComesOnIsNotGivenUp(t *testing.T) {
	cut := errors.New("connection reset")
	for name, c := range map[string]struct {
		step  int64 // how far each try comes
		first time.Duration
		tries int // that fail, then one works
		fails bool
	}{
		"comes on, for long":          {step: 1, tries: 10000},
		"a first cut after an hour":   {first: time.Hour, tries: 1},
		"does not come on":            {tries: 10000, fails: true},
		"is cut late, then comes not": {first: time.Hour, tries: 10000, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api, err := New("http://127.0.0.1:1", Options{})
				if err != nil {
					t.Fatal(err)
				}
				var far int64
				tries, began := 0, time.Now()
				err = Guest{api}.again(t.Context(), func() int64 { return far }, func() error {
					if tries++; tries == 1 {
						<-time.After(c.first)
					}
					if tries > c.tries {
						return nil
					}
					far += c.step
					return cut
				})
				if (err != nil) != c.fails {
					t.Errorf("after %d tries: %v", tries, err)
				}
				if took := time.Since(began) - c.first; c.fails && (took < retryFor || took > retryFor+2*retryMost) {
					t.Errorf("given up after %s", took)
				}
			})
		})
	}
}
