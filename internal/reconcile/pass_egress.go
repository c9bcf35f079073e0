package reconcile

// egress is the place of the egress probe among the passes, after health: the
// verdicts on the proxies of environments will be read and reported here, and
// like those of health they will end nothing. No environment has a proxy yet.
func (*plan) egress() {}
