package api

import "github.com/fusevm/fuse/internal/api/web"

// whileLeading has the answer of a request replaced by an error if this process
// no longer leads the fleet when the answer begins. What it says was read before
// that; a process that was stopped for a while and goes on would tell what was
// true once, and another one leads by now.
func (s *Server) whileLeading(w *web.Writer, r *web.Request) {
	if s.cfg.Leads == nil {
		return
	}
	w.Leads = s.cfg.Leads
	w.Refuse = func(err error) {
		h := w.Header()
		for _, of := range []string{"Content-Type", "Content-Length", "Location", "Warning", "Idempotency-Replayed", "Preference-Applied"} {
			h.Del(of)
		}
		s.writeError(w, r, err)
	}
}
