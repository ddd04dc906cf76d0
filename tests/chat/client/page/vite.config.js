import react from '@vitejs/plugin-react';
import { defineConfig } from 'vite';

// The page is served by Vite, and the API by Django, which it reaches behind the same address.
export default defineConfig({
  plugins: [react()],
  preview: { strictPort: true, proxy: { '/api': process.env.BASE_URL } },
});
