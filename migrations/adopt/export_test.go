package adopt

// Tests have a minute for each second that a step has.
func init() {
	shadowTimeout, logTimeout, readTimeout = 60*shadowTimeout, 60*logTimeout, 60*readTimeout
}
