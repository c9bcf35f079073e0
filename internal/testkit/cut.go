package testkit

import (
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
)

// CutTransport breaks the body of every answer after a random number of bytes
// below Most.
type CutTransport struct {
	Most int
	Cuts atomic.Int64 // how many bodies were broken
}

// RoundTrip implements http.RoundTripper.
func (c *CutTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err == nil {
		resp.Body = &cutBody{ReadCloser: resp.Body, left: rand.IntN(c.Most), cuts: &c.Cuts}
	}
	return resp, err
}

type cutBody struct {
	io.ReadCloser
	left int
	cuts *atomic.Int64
}

var errCut = errors.New("cut")

func (c *cutBody) Read(p []byte) (int, error) {
	if c.left <= 0 {
		c.cuts.Add(1)
		return 0, errCut
	}
	n, err := c.ReadCloser.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}
