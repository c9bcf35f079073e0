package snapshots

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// Print writes the report as tables.
func (r Report) Print(out io.Writer) error {
	p := &printer{w: tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)}
	p.line("machine: %s", r.Machine)
	p.line("host: %s; image %s; a core copies %.0f MB/s", r.Host, r.Image, r.CopyMBs)
	for _, s := range r.Sizes {
		p.line("")
		p.line("%d MB\tp50 ms\tmax ms\tn\tMB\tcopied in ms\tgoal", s.RAMMB)
		for _, t := range s.Times {
			bytes, bound := "", ""
			if t.Bytes > 0 {
				bytes, bound = fmt.Sprintf("%.0f", float64(t.Bytes)/(1<<20)), fmt.Sprintf("%.1f", t.BoundMs)
			}
			p.line("%s\t%.1f\t%.1f\t%d\t%s\t%s\t%s", t.Name, t.P50, t.Max, t.N, bytes, bound, t.Goal)
		}
		p.line("")
		if len(s.Memory) > 0 {
			p.line("Pss\tmachines\tguests MB\tprocesses MB\teach")
		}
		for _, m := range s.Memory {
			n := float64(m.Machines)
			p.line("%s\t%d\t%.0f\t%.0f\t%.0f and %.0f", m.Name, m.Machines, m.GuestMB, m.Process, m.GuestMB/n, m.Process/n)
		}
		for _, ratio := range s.Ratios {
			p.line("%s\t%.2f\t%s", ratio.Name, ratio.Value, ratio.Goal)
		}
		for _, n := range s.Notes {
			p.line("not measured: %s", n)
		}
	}
	return p.end()
}

// printer writes lines and keeps the first error.
type printer struct {
	w   *tabwriter.Writer
	err error
}

func (p *printer) line(format string, args ...any) {
	if _, err := fmt.Fprintf(p.w, format+"\n", args...); p.err == nil {
		p.err = err
	}
}

func (p *printer) end() error {
	if err := p.w.Flush(); p.err == nil {
		p.err = err
	}
	return p.err
}
