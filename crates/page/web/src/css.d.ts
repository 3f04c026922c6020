// SPDX-License-Identifier: GPL-2.0-only
// esbuild's loader gives style sheets as text.

declare module "*.css" {
  const text: string;
  export default text;
}
